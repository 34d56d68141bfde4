"""From articles and questions to labelled hidden states."""
