"""The bookkeeping of a tick of decode rows in a few launches (rlt_core.contract.steps)."""
