terraform {
  # 1.11: write-only arguments, which keep the encryption key out of the state. OpenTofu 1.11 has them too.
  required_version = ">= 1.11"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.87, < 7.0"
    }
  }
}
