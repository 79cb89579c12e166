"""`dptrain plan`: what a run would cost, before anything is charged."""
