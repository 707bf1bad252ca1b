"""What commands print, as text made from typed answers. Pure, but for `width` in layout.py."""
