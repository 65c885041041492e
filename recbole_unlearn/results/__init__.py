"""What comes out of a run: `schema.py` is the contract, `record.py` fills it in, `table.py` prints it."""
