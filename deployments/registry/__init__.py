"""The control plane: who exists, where, healthy, keys. Tokens never pass here."""
