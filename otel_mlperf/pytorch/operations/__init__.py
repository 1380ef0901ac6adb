"""Work of a step: operations of its model, and the batch sizes that suit the device."""
