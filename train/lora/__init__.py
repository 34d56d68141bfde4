"""Adapters below the head (Obeso et al. 2025): training of a model together with its prober.

``probers-train head=lora`` first trains head=linear on the store's states, with all controls. Then it trains
that head and adapters together on the store's texts, which the model reads again.
"""
