"""From labelled hidden states to a calibrated prober."""
