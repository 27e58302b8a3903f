terraform {
  required_version = ">= 1.11"

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 6.23"
    }

    random = {
      source  = "hashicorp/random"
      version = ">= 3.7"
    }
  }
}
