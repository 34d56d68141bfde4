"""What the Elasticsearch retriever is made of: access, server, index, loading, searching."""
