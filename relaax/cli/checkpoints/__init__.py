"""`relaax checkpoints`: looking at checkpoints, verifying, copying and exporting them."""
