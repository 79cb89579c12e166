"""Applies a LoRA adapter to a hidden state that only the client can read (CKKS; Cheon et al. 2017, "Homomorphic Encryption for
Arithmetic of Approximate Numbers").

The client runs the base model, encrypts the state before the adapter, and sends it to a server that has the adapter alone. The
server answers with an encryption of scaling · B A h. `client` holds the secret key, `server` has no way to read a state. The
two are loaded by their own names, so that a server does not load the client: ``from dptrain.inference.he.client import
HEKeys`` and ``from dptrain.inference.he.server import AdapterServer``. Both need ``pip install 'dptrain[he]'``.

What it protects: the state, and what the adapter answers, from a server that does its work and looks (semi-honest). It learns
the sizes, the times, and which adapter is asked. Security is that of ring-LWE with N = 8192 and a modulus of 200 bits, under
the 218 bits that the HomomorphicEncryption.org standard allows for 128 bits of security.

What it does not protect:

* Integrity. A server may answer with anything; nothing shows the client that this adapter was applied, or any.
* The adapter from the client. As many linearly independent queries as a state is wide give B A exactly. Limit how often a
  client may ask. An answer may say more of A and B than its decoded value does (no circuit privacy).
* A client that gives back what it decrypted. CKKS is secure against chosen plaintexts alone (IND-CPA): what a decryption
  answers holds the noise, and the noise tells the secret key (Li and Micciancio 2021, "On the Security of Homomorphic
  Encryption on Approximate Numbers"). Never send a decrypted delta, or a number derived from it, to the server or to whoever
  works with it. A model part on the server's side after the adapter is such a number.
* Anything where the server runs the base model itself: it has the state in clear then. Encryption does not help there, and
  neither does noise; what helps is hardware that its owner cannot look into (a trusted execution environment).

It is no differential privacy, and it costs no epsilon: the guarantee of the adapter is that of its training, and a query adds
nothing to it and takes nothing from it.
"""
