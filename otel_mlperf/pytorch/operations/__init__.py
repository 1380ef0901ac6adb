"""How much work is a step: what its model computes, and which batches suit the device?"""
