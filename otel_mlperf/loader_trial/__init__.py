"""How fast is a data loader, what of it takes the time, and with which setting is it fastest?"""
