"""What the clients of several clouds share."""
