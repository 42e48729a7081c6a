"""statefork as environments of Gymnasium: see :mod:`statefork.gym`."""
