//! Faults of the session world: connections, processes, machines and the network between them.
//!
//! ```text
//!   reset ─► both ends know it soon          process killed ─► sessions forgotten, started again
//!   silent ─► each end finds out by itself   machine restarted ─► volatile writes lost, too
//!   closed ─► by the mount                   partition ─► nothing passes, no connection is made
//! ```

use model::Nanos;

use super::{MOUNTS, PROXIES, SessionSimEvent, SessionWorld};

impl SessionWorld {
    /// Something breaks, and something else later.
    pub(super) fn fault(&mut self) {
        if self.is_healing {
            return;
        }
        match self.prng.below(20) {
            0..6 => self.any_wire().into_iter().for_each(|wire| self.reset(wire)),
            6..10 => self.any_wire().into_iter().for_each(|wire| self.silence(wire)),
            10..13 => self.any_wire().into_iter().for_each(|wire| self.close_at_mount(wire)),
            13..16 => self.kill_proxy(false),
            16..18 => self.kill_proxy(true),
            _ => self.partition(),
        }
        let gap = Nanos::new(self.prng.exponential(self.fault_gap.get()));
        self.after(gap, SessionSimEvent::Fault);
    }

    /// Ends all faults: proxies start, partitions heal, and no fault comes any more.
    pub(super) fn heal(&mut self) {
        self.is_healing = true;
        self.partitions.clear();
        for proxy in 0..PROXIES {
            if !self.proxies[proxy].is_up {
                self.start_proxy(proxy);
            }
        }
    }

    pub(super) fn start_proxy(&mut self, proxy: usize) {
        if !self.proxies[proxy].is_up {
            self.machine_is_up[proxy] = true;
            self.proxies[proxy].start();
        }
    }

    /// Whether a mount can connect to the machine of a proxy.
    pub(super) fn is_reachable(&self, mount: usize, proxy: usize) -> bool {
        self.machine_is_up[proxy] && !self.partitions.contains(&(mount, proxy))
    }

    fn any_wire(&mut self) -> Option<usize> {
        let at = self.prng.below(self.live.len() as u64) as usize;
        self.live.iter().nth(at).copied()
    }

    /// What is in transit is lost, and both ends know it soon.
    fn reset(&mut self, wire: usize) {
        if self.cut(wire) {
            let [proxy, mount] = [0; 2].map(|_| Nanos::from_millis(self.prng.below(100)));
            self.after(proxy, SessionSimEvent::ProxyNotices { wire });
            self.after(mount, SessionSimEvent::MountNotices { wire });
        }
    }

    /// What is in transit is lost; the proxy notices it by its keepalive, the mount by a ping.
    fn silence(&mut self, wire: usize) {
        if self.cut(wire) {
            let notices = Nanos::from_millis(self.prng.below(KEEPALIVE_MS));
            self.after(notices, SessionSimEvent::ProxyNotices { wire });
        }
    }

    /// The mount closes the connection; what it has sent before still arrives.
    fn close_at_mount(&mut self, wire: usize) {
        let (mount, channel) = (self.wires[wire].mount, self.wires[wire].channel);
        self.mounts[mount].disconnect(channel, &mut self.side.checks);
        self.carry_out(mount);
    }

    /// Kills a proxy's process, or restarts its machine.
    fn kill_proxy(&mut self, with_machine: bool) {
        let proxy = self.prng.below(PROXIES as u64) as usize;
        if !self.proxies[proxy].is_up {
            return;
        }
        let prng = &mut self.prng;
        self.proxies[proxy].kill(&mut self.side, || prng.below(2) == 0);
        let wires: Vec<usize> =
            self.live.iter().copied().filter(|wire| self.wires[*wire].proxy == proxy).collect();
        for wire in wires {
            self.cut(wire);
            if !with_machine {
                let notices = Nanos::from_millis(self.prng.below(100));
                self.after(notices, SessionSimEvent::MountNotices { wire });
            }
        }
        if with_machine {
            self.proxies[proxy].lose_memory(&mut self.side);
            self.machine_is_up[proxy] = false;
        }
        let down = match with_machine {
            true => self.prng.between(500, 45_000),
            false => self.prng.between(100, 8_000),
        };
        self.after(Nanos::from_millis(down), SessionSimEvent::Start { proxy });
    }

    /// Nothing passes between a mount and a proxy for a while.
    fn partition(&mut self) {
        let mount = self.prng.below(MOUNTS as u64) as usize;
        let proxy = self.prng.below(PROXIES as u64) as usize;
        if !self.partitions.insert((mount, proxy)) {
            return;
        }
        let is_between =
            |wire: &usize| self.wires[*wire].mount == mount && self.wires[*wire].proxy == proxy;
        let wires: Vec<usize> = self.live.iter().copied().filter(is_between).collect();
        wires.into_iter().for_each(|wire| self.silence(wire));
        let span = match self.prng.below(4) {
            0 => self.prng.between(30_000, 100_000),
            _ => self.prng.between(500, 20_000),
        };
        self.after(Nanos::from_millis(span), SessionSimEvent::Heal { mount, proxy });
    }

    /// Loses what is in transit and what is sent from now on. `false`: it was lost already.
    fn cut(&mut self, wire: usize) -> bool {
        self.wires[wire].carries = false;
        self.live.remove(&wire)
    }
}

/// Time within which a proxy notices that a peer does not answer; `io/proxy` has the same.
const KEEPALIVE_MS: u64 = 20_000;
