"""What tests share: lakes, servers, models, the stack."""
