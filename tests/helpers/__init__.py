"""What tests share: tiny models, stores and runs, servers that pretend, errors by their code."""
