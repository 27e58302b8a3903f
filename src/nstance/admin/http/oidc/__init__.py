"""Logging in with an identity provider: OpenID Connect, code flow with PKCE."""
