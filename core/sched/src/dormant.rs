//! Dormant classes: without waiting or running requests and without references.
//!
//! ```text
//!   class ── last subject leaves ─► DormantClass: finish tags, R, sums ── its key returns ─► class
//!                                     └─ more than IDLE_MAX: the one dormant for longest is dropped
//! ```
//!
//! An active class has queues, an entry in heaps and counters. A dormant one is the few numbers
//! that leave it no better and no worse off when it is revived.

use std::sync::Arc;

use crate::class::Class;
use crate::classify::{ClassKey, IDLE_MAX};
use crate::dispatcher::Dispatcher;
use crate::ids::ClassId;
use crate::report::Usage;
use crate::reservation::Reservation;
use crate::tags::VirtualTime;
use crate::wait::WaitCauses;

/// The state that is kept of a dormant class.
#[derive(Debug)]
pub(crate) struct DormantClass {
    pub(crate) key: Arc<ClassKey>,
    pub(crate) id: ClassId,
    finish: [VirtualTime; 2],
    pub(crate) reservation: Option<Reservation>,
    pub(crate) usage: Usage,
    pub(crate) causes: Option<Box<WaitCauses>>,
    /// Its number among the dormant classes.
    idle: u64,
}

impl Dispatcher {
    /// Makes an unused class dormant, if that did not happen with the last of its subjects.
    pub(crate) fn make_dormant(&mut self, index: u32) {
        if !self.classes.lives(index) || self.classes[index].in_use() {
            return;
        }
        let class = &mut self.classes[index];
        let rested = DormantClass {
            key: class.key.clone(),
            id: class.id,
            finish: class.lanes.map(|standing| standing.finish),
            reservation: class.reservation,
            usage: class.usage,
            causes: class.causes.take(),
            idle: 0,
        };
        self.names.classes.remove(&rested.key);
        self.classes.remove(index);
        let key = rested.key.clone();
        let index = self.dormant.insert(rested);
        self.dormant[index].idle = self.names.idle_classes.enter(index);
        self.names.dormant.insert(key, index);
        if let Some(oldest) = self.names.idle_classes.surplus(IDLE_MAX) {
            self.drop_dormant(oldest);
        }
    }

    /// Revives the dormant class of a key.
    pub(crate) fn revive_class(&mut self, key: &ClassKey) -> Option<u32> {
        let index = self.names.dormant.remove(key)?;
        self.names.idle_classes.remove(&mut self.dormant[index].idle);
        self.dormant.remove(index);
        let causes = self.dormant[index].causes.take();
        let DormantClass { key, id, finish, reservation, usage, .. } = &self.dormant[index];
        let mut class = Class::new(key.clone(), *id);
        class.cost_reported = usage.cost;
        for (standing, finish) in class.lanes.iter_mut().zip(finish) {
            standing.finish = *finish;
        }
        (class.reservation, class.usage, class.causes) = (*reservation, *usage, causes);
        let index = self.add_class(class);
        self.bound_lag(index);
        Some(index)
    }

    /// Forgets a dormant class.
    pub(crate) fn drop_dormant(&mut self, index: u32) {
        self.names.idle_classes.remove(&mut self.dormant[index].idle);
        self.dormant.remove(index);
        let key = self.dormant[index].key.clone();
        self.names.dormant.remove(&key);
        self.names.uncount(&key);
    }
}
