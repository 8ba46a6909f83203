"""Write the bundled example's untrained model: tokenizer, chat template, config and random weights.

    python scripts/make_example_model.py --out output/example_init

`scripts/train_example_model.sh` continues with the warm start: `python -m trainer.sft` on demonstrations.

Defines the tokenizer. A model of 0.8 M parameters copies a value reliably only if its tokens are the same in every
position, so capitals, digits and the operators + - * are always one token each; structural text (JSON skeletons, tool
names, the words of the questions) is merged into longer tokens, which keeps episodes short. Byte-level: every text
round-trips.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from shared.processes.interrupt import run_command

EXAMPLE_DIR = Path(__file__).resolve().parent.parent / "assets" / "example"
sys.path.insert(0, str(EXAMPLE_DIR))  # the example is not an installed package

from world import COLORS, TOOLS  # noqa: E402  # found by the line above

PAD, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
# As in Qwen3, not "special": decoding with skip_special_tokens keeps them for the parsers.
MARKERS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<answer>", "</answer>")
MAX_VOCAB = 512
MAX_POSITIONS = 1024
EMBEDDING_STD = 0.1

# One capital | one digit | one operator | a lower-case word with its space | a run of everything else.
PIECES = r"\p{Lu}|\p{N}|[+\-*]| ?[\p{Ll}_]+|[^\p{Lu}\p{Ll}\p{N}_+\-*]+"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=7, help="seed of the random weights (default 7)")
    arguments = parser.parse_args()
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, arguments.seed)
    tokenizer.save_pretrained(arguments.out)
    model.save_pretrained(arguments.out)
    print(f"{arguments.out}: {model.num_parameters():,} parameters, vocabulary {model.config.vocab_size}")


def build_tokenizer(texts: Iterable[str] | None = None) -> PreTrainedTokenizerFast:
    """`texts`: whose pieces are merged; None: those of the bundled example."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=MAX_VOCAB,
        special_tokens=[PAD, TURN_START, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(structural_texts() if texts is None else texts, trainer)
    backend.add_tokens([AddedToken(marker, normalized=False, special=False) for marker in MARKERS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=TURN_END,
        pad_token=PAD,
        additional_special_tokens=[TURN_START],
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = (EXAMPLE_DIR / "chat_template.jinja").read_text()
    return tokenizer


def structural_texts() -> Iterator[str]:
    """Texts around the values: no digits, no operators, and capitals only at the beginning of a word.

    Each text is given twice, since a pair of symbols that occurs once is not merged.
    """
    names = [tool["function"]["name"] for tool in TOOLS]
    parameters = [next(iter(tool["function"]["parameters"]["properties"])) for tool in TOOLS]
    pairs = list(zip(names, parameters, strict=True))
    yield from 2 * ["system\n", "user\n", "assistant\n", "\n", "\n# Tools\n"]
    yield from 2 * [f"{name}({parameter})\n" for name, parameter in pairs]
    yield from 2 * [f'\n{{"name": "{name}", "arguments": {{"{parameter}": "A"}}}}\n' for name, parameter in pairs]
    yield from 2 * ["What is A?", "Which color does the owner of box A like?"]
    yield from 2 * ["unknown box A", "unknown person A", "malformed expression A, use numbers with"]
    yield from 2 * list(COLORS)


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=-(-len(tokenizer) // 8) * 8,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_POSITIONS,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    model = Qwen3ForCausalLM(config)
    model.float()
    # At Qwen3's 0.02 the first layers' output dominates a token's embedding: capitals were copied after more than
    # 1,200 steps of 32 demonstrations, with 0.1 after 400 steps of 16.
    embeddings = model.get_input_embeddings()
    assert isinstance(embeddings, torch.nn.Embedding)
    torch.nn.init.normal_(embeddings.weight, std=EMBEDDING_STD)
    model.generation_config = GenerationConfig(eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id)
    return model


if __name__ == "__main__":
    run_command(main)
