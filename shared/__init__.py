"""What both services share: documents, the store, configuration, the embedded mongod, audit. No torch, neither service."""
