"""Images: from a content block to decoded pixels, and from pixels to a model's tokens and inputs. Torch-free."""
