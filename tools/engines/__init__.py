"""Engines as this project installs them: a pinned wheel plus the patches in ``patches/<engine>``.

``python tools/engines build ENGINE`` makes the patched wheel, ``check`` proves that every patch
still applies to its pinned wheels, ``list`` shows what there is. Only the standard library, pip
(for the download) and git (for ``git apply``) are needed.
"""
