"""The language model: loading, caches of keys and values, decoding in batches, teacher-forced scoring."""
