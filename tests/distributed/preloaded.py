"""What the processes of a test have imported before they are forked; short, since that is all. Nothing here may run threads."""

import gc

import accelerate  # noqa: F401
import cryptography.hazmat.backends.openssl.backend  # noqa: F401
import sqlalchemy.dialects.postgresql
import sqlalchemy.dialects.sqlite  # noqa: F401
import torch._dynamo
import torch.distributed  # noqa: F401
import transformers  # noqa: F401
from torch.nn.parallel import DistributedDataParallel  # noqa: F401
from transformers import BertForSequenceClassification, GPT2LMHeadModel, LlamaForCausalLM  # noqa: F401

import dptrain
import dptrain.cli.app
import dptrain.cli.generate.making
import dptrain.engine.private_training
import dptrain.integrations.transformers  # noqa: F401
import ledger.storage.sql.sqlite  # noqa: F401
import tests.guarantees.peers
import tests.reference.families
import tests.worlds.training  # noqa: F401

# What is imported never goes: else every process goes through all of it when it collects, and copies its pages.
gc.collect()
gc.freeze()
gc.set_threshold(20_000, 10, 10)
