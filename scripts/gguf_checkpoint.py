"""Write the chat model of a GGUF file as an ordinary float32 checkpoint, and see that it still answers.

    PYTHONPATH=folder-with-gguf python scripts/gguf_checkpoint.py model.gguf FOLDER      scripts/setup_model.sh calls this

transformers reads GGUF with the package gguf. What it makes is marked as quantized, which it is not any more. An output layer
that is tied to the embeddings is not written a second time.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

QUESTION, ANSWER = "What is the capital of France?", "Paris"


def main() -> None:
    source, folder = Path(sys.argv[1]), Path(sys.argv[2])
    given = {"gguf_file": source.name}
    tokenizer: Any = AutoTokenizer.from_pretrained(source.parent, **given)
    read: Any = AutoModelForCausalLM.from_pretrained(source.parent, dtype=torch.float32, **given)
    config = read.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model: Any = type(read)(config)
    model.load_state_dict(read.state_dict())
    model.tie_weights()
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    reply = answer(folder)
    if ANSWER not in reply:
        sys.exit(f"to {QUESTION!r} it replies {reply!r}; expected {ANSWER}: the conversion went wrong")


def answer(folder: Path) -> str:
    """Greedy, by what was written."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    asked = [{"role": "user", "content": QUESTION}]
    inputs = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        ids = model.generate(**inputs, max_new_tokens=16, do_sample=False)
    reply: str = tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return reply


if __name__ == "__main__":
    main()
