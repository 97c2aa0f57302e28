"""The hot loop: flat NumPy arrays and scalars in, arrays written in place, an integer status out.

Nothing here knows collemu, MPI, files or classes; nothing here raises.
"""
