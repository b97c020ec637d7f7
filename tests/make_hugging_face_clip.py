"""Writes tests/data/hugging_face_clip: a CLIPModel of random weights, and what it gives in every stage.

    python tests/make_hugging_face_clip.py

in an environment with transformers (5.24.0 was used) and torch (2.13.0), neither of which the tests need.
"""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import CLIPConfig, CLIPModel

FOLDER = Path(__file__).parent / "data" / "hugging_face_clip"
TEXT = {
    "vocab_size": 41,
    "hidden_size": 12,
    "intermediate_size": 20,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "max_position_embeddings": 9,
    "eos_token_id": 39,
    "bos_token_id": 38,
    "pad_token_id": 1,
}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 28,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 15,
    "patch_size": 5,
}


def main():
    torch.manual_seed(0)
    config = CLIPConfig(text_config=TEXT, vision_config=VISION, projection_dim=10)
    model = CLIPModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0, 0.3)
            if "norm" in name and name.endswith("weight"):
                parameter.add_(1)
        model.logit_scale.fill_(2.9)
    text = torch.randint(2, 38, (4, 7))
    text[:, 0] = TEXT["bos_token_id"]
    ends = [6, 4, 2, 5]
    for row, end in zip(text, ends):
        row[end], row[end + 1 :] = TEXT["eos_token_id"], TEXT["pad_token_id"]
    mask = (torch.arange(7) <= torch.tensor(ends)[:, None]).long()
    images = torch.randn(3, 3, 15, 15)
    with torch.no_grad():
        output = model(input_ids=text, attention_mask=mask, pixel_values=images, output_hidden_states=True)
        vision = model.vision_model(pixel_values=images, output_hidden_states=True)
        language = model.text_model(input_ids=text, attention_mask=mask, output_hidden_states=True)
    stages = {
        "text": text,
        "mask": mask,
        "images": images,
        **{f"vision/{i}": x for i, x in enumerate(vision.hidden_states)},
        **{f"text/{i}": x for i, x in enumerate(language.hidden_states)},
        "vision/pooled": vision.pooler_output,
        "text/pooled": language.pooler_output,
        "image_embeds": output.image_embeds,
        "text_embeds": output.text_embeds,
        "logits_per_image": output.logits_per_image,
        "logits_per_text": output.logits_per_text,
    }
    FOLDER.mkdir(parents=True, exist_ok=True)
    save_file({name: x.contiguous() for name, x in model.state_dict().items()}, FOLDER / "model.safetensors")
    (FOLDER / "config.json").write_text(json.dumps(config.to_dict(), indent=2, sort_keys=True) + "\n")
    np.savez(FOLDER / "stages.npz", **{name: x.numpy() for name, x in stages.items()})


if __name__ == "__main__":
    main()
