"""The language model: loading, keys and values, decoding in batches, teacher-forced scoring."""
