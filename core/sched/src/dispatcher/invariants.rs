//! Invariants that hold between the owners, and those of each, in one place.
//!
//! Debug builds check them after a public call, often while little has happened and occasionally
//! later; property tests check them after each step.

use rules::{EntitlementId, RuleSet};

use super::Dispatcher;
use crate::index::{ChainIndex, TableIndex as _};
use crate::lanes::{QueuePlace, QueuedRequest, RequestStage};

impl Dispatcher {
    /// Panics if the dispatcher contradicts itself. O(everything).
    pub fn check_invariants(&self) {
        self.lanes.check(self.registry.classes());
        self.registry.check(|class| self.lanes.has_requests(class));
        let mut passed = Vec::new();
        for place in self.registry.classes().flat_map(QueuePlace::all_of) {
            let waits = self.meters.holds(place.lane, place.waiter());
            assert_eq!(waits, self.lanes.is_waiting(place), "line of {place:?}");
            if !self.lanes.is_empty(place) && !waits {
                let line = self.line_of(place);
                passed.extend(self.lanes.passed(place).map(|(chain, bits)| (line, chain, bits)));
            }
        }
        let mut chains: Vec<u32> = Vec::new();
        let mut count = |chain: ChainIndex| {
            let at = chain.raw() as usize;
            chains.resize(chains.len().max(at + 1), 0);
            chains[at] += 1;
        };
        self.registry.ways().filter_map(|way| way.chain.get()).for_each(&mut count);
        self.lanes.requests().filter_map(|request| request.chain.get()).for_each(&mut count);
        let refs = |chain: ChainIndex| chains.get(chain.raw() as usize).copied().unwrap_or(0);
        self.meters.check(refs, &passed, self.now);
        let loads = self.registry.classes().map(|class| {
            let (queued, running, _) = self.lanes.own_load_of(class);
            (self.lanes.watched(class), queued + running)
        });
        self.terms.check(loads);
        let rows = self.terms.entitlements();
        for class in self.registry.classes() {
            let key = self.registry.key(class);
            // A branch whose key another one has now runs what it had.
            let of_group = |row: &EntitlementId| rows.group_of(*row) == Some(*row);
            let group = key.branch.filter(of_group);
            let wanted = group.and_then(|group| self.terms.reserved_by(group, key.target));
            let given = self.lanes.reserved_terms(class);
            assert!(
                wanted.is_none_or(|of| given == Some(of)),
                "{key:?}: {given:?}, not {wanted:?}"
            );
        }
        if self.change.is_none() {
            self.check_classifications();
        }
    }

    /// Each waiting request has the rule, the branch and the meters that rules and rows give it, but for
    /// those that ran when the rules changed and missed the cache since.
    fn check_classifications(&self) {
        let is_first_try = |request: &&QueuedRequest| {
            request.stage == RequestStage::Queued && !request.is_returned()
        };
        let waiting = self.lanes.requests().filter(is_first_try);
        for request in waiting {
            let (subject, kind) = (request.subject, request.kind);
            let (who, paths) = (self.registry.identity(subject), self.registry.paths(subject));
            let key = self.registry.key(request.class);
            let rule = self.terms.rule_for(who, kind, paths).map_or(RuleSet::DEFAULT, |r| &r.name);
            assert_eq!(&*key.rule, rule, "rule of request {}", request.number);
            let mut wanted = self.terms.meters_for(key, who, kind, paths);
            let (mark, target) = (self.registry.mark(subject), &self.lanes.params(key.target).name);
            let branch = self.terms.entitle(key, who, mark, target, kind, &mut wanted);
            assert_eq!(key.branch, branch, "branch of {}", request.number);
            let wanted = wanted.into_iter();
            let chain = request.chain.get().into_iter();
            let paid = chain.flat_map(|chain| self.meters.of_chain(chain));
            let paid = paid.map(|meter| self.meters.key_and_rate(meter).0.clone());
            assert!(wanted.map(|terms| terms.key).eq(paid), "meters of {}", request.number);
        }
    }
}
