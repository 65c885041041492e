"""An unlearning method outside recbole-unlearn."""
