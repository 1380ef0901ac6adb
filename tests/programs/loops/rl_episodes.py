"""A policy plays episodes of different length; each ends with one update, as in REINFORCE."""

from __future__ import annotations

import torch
from marks import run, section, step
from torch import nn

TRUE = {
    "steps": 8,
    "batches": 0,
    "forwards": [6, 9, 3, 12, 6, 9, 3, 12],
    "backwards": 8,
    "updates": 8,
    "validations": 0,
    "checkpoints": 0,
}
LENGTHS = [6, 9, 3, 12]
PLAYERS = 256


class Game:
    """Walks that many players play at once: who stays near the origin is rewarded."""

    def __init__(self, length):
        self.left = length
        self.state = torch.zeros(PLAYERS, 128)

    def turn(self, moves):
        """The state after all have moved, what they get for it, and whether it is over."""
        self.left -= 1
        self.state = torch.roll(self.state, 1, dims=1)
        self.state[:, 0] += moves.float() - 0.5
        return self.state.clone(), 1.0 - self.state.sum(1).abs(), self.left == 0


def play(policy, length):
    """The logarithms of the chances of the moves of one episode, and the rewards."""
    game, chances, rewards, is_over = Game(length), [], [], False
    state = game.state.clone()
    while not is_over:
        with section("forward"):
            output = policy(state)
        moves = torch.distributions.Categorical(logits=output)
        move = moves.sample()
        state, reward, is_over = game.turn(move)
        chances.append(moves.log_prob(move))
        rewards.append(reward)
    return torch.stack(chances), torch.stack(rewards)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    policy = nn.Sequential(nn.Linear(128, 2048), nn.ReLU(), nn.Linear(2048, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    for episode in range(8):
        with step():
            chances, rewards = play(policy, LENGTHS[episode % len(LENGTHS)])
            returns = rewards.flip(0).cumsum(0).flip(0)
            loss = -(chances * (returns - returns.mean())).mean()
            optimizer.zero_grad()
            with section("backward"):
                loss.backward()
            with section("optimizer"):
                optimizer.step()
        print(f"episode {episode}: reward {rewards.sum(0).mean().item():.6f}")


if __name__ == "__main__":
    with run():
        main()
