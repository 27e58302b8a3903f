"""Faults of agents, and what others do with their identities."""

from nstance.model.ids import InstanceId
from nstance.sim.agent import SimAgent, key_pair, registration_request
from nstance.sim.faults.target import FaultGroup

THIEF_ADDRESS = "203.0.113.7"


class AgentFaults(FaultGroup):
    def cut_agent(self) -> bool:
        return self.strike_agent(lambda agent: agent.cut_off(self.r.choice((2.0, 8.0, 12.0, 40.0))))

    def cut_most_agents(self) -> bool:
        """Half of them to all of them at once: mass silence."""
        agents = [a for a in self.world.agents() if a.connection is not None]
        if len(agents) < 2:
            return False
        seconds = self.r.choice((4.0, 12.0, 30.0))
        for agent in self.r.sample(agents, self.r.randint(max(2, len(agents) // 2), len(agents))):
            agent.cut_off(seconds * self.r.uniform(0.8, 1.2))
        return True

    def shut_agents_out(self) -> None:
        """New connections fail, existing ones stay; registrations work: a firewall, or a wrong address."""
        self.world.agents_shut_out_until = self.world.now + self.r.choice((5.0, 20.0, 60.0))

    def restart_agent(self) -> bool:
        return self.strike_agent(lambda agent: agent.restart(self.r.choice((0.5, 4.0, 20.0))))

    def forget_agent(self) -> bool:
        """The state directory is lost after the nonce was spent."""
        agent = self.pick_agent()
        if agent is None or any(a.identity_lost and a.alive for a in self.world.agents()):
            return False  # several at once never come back: mass silence, which only a person ends
        agent.lose_identity()
        return True

    def replay_nonce(self) -> bool:
        """A used nonce is presented with another key."""
        registered = [a for a in self.world.agents() if a.registered]
        port = self.world.find_agent_port()
        if not registered or port is None:
            return False
        agent = self.r.choice(registered)
        number = 4000 + self.r.randrange(50)

        async def steal() -> None:
            try:
                answer = await port.register(registration_request(number, agent.request.nonce), THIEF_ADDRESS)
            except TimeoutError:
                return
            if answer.startswith("-----"):
                self.world.auditor.on_certificate(agent.id, key_pair(number)[1])

        self.world.start(steal())
        return True

    def clone_agent(self) -> bool:
        """A copied identity directory: two live agents take the connection from each other."""
        agent = self.pick_agent()
        if agent is None or agent.id in self.world.auditor.cloned:
            return False
        self.world.auditor.cloned.add(agent.id)
        agent.clone_identity(self.r.choice((1.0, 8.0, 20.0)))
        return True

    def notice(self) -> bool:
        return self.strike_agent(self._give_notice)

    def _give_notice(self, agent: SimAgent) -> None:
        kind = self.r.choice(("SPOT_TERMINATION", "SPOT_TERMINATION", "SPOT_REBALANCE", "SHUTDOWN"))
        seconds = self.r.choice((5.0, 20.0))
        if agent.deliver_notice(kind, seconds) and kind != "SPOT_REBALANCE" and self.r.random() < 0.8:
            self.world.later(seconds, self._take_back, agent.id)

    def _take_back(self, id: InstanceId) -> None:
        if id not in self.world.auditor.protected and not self.world.faults_stopped:
            self.world.cloud.destroy(id)

    def fail_checks(self) -> bool:
        agents = [a for a in self.world.agents() if a.alive and a.registered]
        if not agents:
            return False
        for agent in self.r.sample(agents, self.r.choice((1, 1, len(agents)))):
            agent.fail_checks(True)
            self.world.later(self.r.choice((1.0, 6.0, 30.0)), agent.fail_checks, False)
        return True
