"""The trainer's settings: one model a section, and `config.TrainerConfig` of all of them.

    model (lora) ▸ memory ▸ parallel ▸ data ▸ loss (averaging, correction, kl) ▸ optimizer ▸ publish ▸ checkpoint ▸ report

A section that an object of the trainer is made from is that object's own class, and lies where the object is:
`MemorySettings`, `LoraSettings`, `LossConfig`. `trainer.sft.config.SftConfig` has some of these sections too.
"""
