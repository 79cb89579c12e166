"""What the processes of a test have imported before they are forked; short, since that is all. Nothing here may run threads."""

import accelerate  # noqa: F401
import cryptography.hazmat.backends  # noqa: F401
import sqlalchemy.dialects.sqlite  # noqa: F401
import torch._dynamo
import torch.distributed  # noqa: F401
import transformers  # noqa: F401
from torch.nn.parallel import DistributedDataParallel  # noqa: F401
from transformers import BertForSequenceClassification, GPT2LMHeadModel  # noqa: F401

import dptrain
import dptrain.engine.private_training
import dptrain.integrations.transformers  # noqa: F401
import tests.guarantees.peers
import tests.reference.families
import tests.worlds.training  # noqa: F401
