"""Compares a drafter's reply with what was asked, before anything of it is believed."""

from __future__ import annotations

from deployments.link.messages import Proposal, Proposals
from deployments.link.peer import Asked, Message


def find_fault(reply: Proposals, message: Message, vocab_size: int) -> str | None:
    """What makes this reply unusable as a whole, or None.

    A drafter that gets one item wrong is not trusted with the others of the same reply.
    """
    seen: set[int] = set()
    for proposal in reply.items:
        asked = message.items.get(proposal.session)
        if asked is None or proposal.session in seen:
            return f"session {proposal.session} was not asked in step {reply.step}"
        seen.add(proposal.session)
        fault = _find_item_fault(proposal, asked, vocab_size)
        if fault:
            return fault
    return None


def _find_item_fault(proposal: Proposal, asked: Asked, vocab_size: int) -> str | None:
    if proposal.state != "ok":
        return f"{len(proposal.tokens)} tokens with state {proposal.state}" if proposal.tokens else None
    if proposal.position != asked.position:
        return f"proposals for position {proposal.position}, asked for {asked.position}"
    if len(proposal.tokens) > asked.length:
        return f"{len(proposal.tokens)} tokens, asked for {asked.length}"
    if proposal.tokens and max(proposal.tokens) >= vocab_size:
        return f"token id {max(proposal.tokens)}, the vocabulary has {vocab_size}"
    return None
