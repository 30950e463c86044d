"""Training scripts by new hands, with and without a mistake, to fit to and to judge by."""
