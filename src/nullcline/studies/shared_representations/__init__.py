"""The shared-representations note: gated deep linear networks over language pairs."""
