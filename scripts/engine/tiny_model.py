"""Makes a model of two layers with random weights that vLLM loads from a folder.

usage: tiny_model.py DIR

The weights come from a fixed seed, so that two engines give the same answer at
temperature 0. The tokenizer is a byte-level BPE trained on the sentences below:
any text goes in, and what comes out is noise with every byte in it, also broken
UTF-8, which a gateway must pass on as the engine sent it.
"""

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, FFN, CONTEXT = 128, 2, 2, 1, 64, 256, 8192
SPECIAL = ["<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>"]
SENTENCES = [
    "The gateway sends each user to one of two engines and counts the tokens that each of them reads and writes.",
    "A model with random weights says nothing of sense, but it says it in the same way every time.",
    "Streams are cut into events, events carry pieces of text, and the last one may carry the usage.",
    "Überall dieselben Bytes: naïve café, 東京, привет, emoji \U0001f600.",
]
TEMPLATE = "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"


def tokenizer(folder: Path) -> int:
    """Trains and saves the tokenizer; the number of its tokens."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(SENTENCES * 4, trainers.BpeTrainer(
        vocab_size=512, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    t.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>",
        "model_max_length": CONTEXT, "clean_up_tokenization_spaces": False, "chat_template": TEMPLATE}))
    return t.get_vocab_size()


def weights(vocab: int) -> dict[str, np.ndarray]:
    """The tensors of a Llama, float32 from a fixed seed."""
    r = np.random.default_rng(7)

    def normal(*shape):
        return r.normal(0, 0.4, shape).astype(np.float32)

    w = {"model.embed_tokens.weight": normal(vocab, HIDDEN), "lm_head.weight": normal(vocab, HIDDEN),
         "model.norm.weight": np.ones(HIDDEN, np.float32)}
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        w |= {p + "input_layernorm.weight": np.ones(HIDDEN, np.float32),
              p + "post_attention_layernorm.weight": np.ones(HIDDEN, np.float32),
              p + "self_attn.q_proj.weight": normal(HEADS * HEAD_DIM, HIDDEN),
              p + "self_attn.k_proj.weight": normal(KV_HEADS * HEAD_DIM, HIDDEN),
              p + "self_attn.v_proj.weight": normal(KV_HEADS * HEAD_DIM, HIDDEN),
              p + "self_attn.o_proj.weight": normal(HIDDEN, HEADS * HEAD_DIM),
              p + "mlp.gate_proj.weight": normal(FFN, HIDDEN), p + "mlp.up_proj.weight": normal(FFN, HIDDEN),
              p + "mlp.down_proj.weight": normal(HIDDEN, FFN)}
    return w


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    vocab = tokenizer(folder)
    save_file(weights(vocab), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 0, "eos_token_id": 1}))
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocab, "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
        "intermediate_size": FFN, "max_position_embeddings": CONTEXT, "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "float32", "bos_token_id": 0, "eos_token_id": 1}))
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(f"tiny_model: {vocab} tokens, {LAYERS} layers, {size / 1e6:.1f} MB in {folder}")


main()
