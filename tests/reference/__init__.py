"""The outer algorithms in one process, as the papers write them: what the product is compared with bit for bit.

Run by tests and by the convergence study only; nothing in the product imports it.
"""
