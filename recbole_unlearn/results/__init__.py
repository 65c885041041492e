"""What comes out of a run: `schema.py` the contract, `record.py` fills it in, `privacy.py` shows less, `table.py`."""
