//! Groups: reservations that share targets are placed together, and targets are chosen by use.
//!
//! ```text
//!   requests ─► order 1: as given ────┐ each at its earliest fit, in the calendar as it is
//!           └─► order 2: most bytes ──┴─► the order that ends first ─► all placed, or none
//! ```

use model::{Amount, Time};

use super::{Admission, Calendar};
use crate::demand::ResourceId;
use crate::request::{ReservationClass, ReservationError, ReservationRequest};
use crate::reservation::ReservationId;
use crate::resources::Span;

/// Starts in an order of placing: the place of the request and its start.
type GroupPlan = Vec<(usize, Time)>;

impl Calendar {
    /// Requests fixed reservations that are all placed or all refused. Returns them in the order of
    /// the requests. Their spans interleave on what they share.
    ///
    /// # Errors
    /// If one of them is refused: no order of placing that is tried has room for all.
    pub fn request_group(
        &mut self,
        requests: Vec<ReservationRequest>,
        now: Time,
    ) -> Result<Vec<ReservationId>, ReservationError> {
        self.advance(now);
        if requests.is_empty() || requests.len() > GROUP_MAX {
            return Err(ReservationError::GroupSize(requests.len(), GROUP_MAX));
        }
        if self.table.len() + requests.len() > self.settings.reservations_max {
            return Err(ReservationError::Full(self.table.len()));
        }
        let reserved: Vec<Amount> =
            requests.iter().map(|request| self.check(request)).collect::<Result<_, _>>()?;
        for request in &requests {
            self.resources.check_room(&request.demand, requests.len())?;
        }
        let given: Vec<usize> = (0..requests.len()).collect();
        let mut by_bytes = given.clone();
        by_bytes.sort_by_key(|at| (std::cmp::Reverse(reserved[*at].bytes), *at));
        let plans = [self.plan_group(&requests, &given), self.plan_group(&requests, &by_bytes)];
        let plan = best_plan(&requests, plans)?;
        self.charge_group(&requests, &reserved)?;
        let mut ids = vec![ReservationId(0); requests.len()];
        for (at, start) in plan {
            let mut request = requests[at].clone();
            request.class = ReservationClass::Fixed;
            ids[at] = self.enter(request, Admission { reserved: reserved[at], start });
        }
        self.settle();
        Ok(ids)
    }

    /// The `count` resources of `candidates` whose greatest use during a span is least, those that
    /// come first among equals. Fewer if there are fewer.
    pub fn least_loaded(
        &self,
        candidates: &[ResourceId],
        count: usize,
        span: Span,
    ) -> Vec<ResourceId> {
        let known = candidates.iter().filter(|at| self.resources.describe(**at).is_some());
        let mut by_peak: Vec<_> =
            known.map(|at| (self.resources.peak(*at, self.rest_of(span)), *at)).collect();
        by_peak.sort_by_key(|(peak, _)| *peak);
        by_peak.into_iter().take(count).map(|(_, at)| at).collect()
    }

    /// The starts of requests that are placed in an order. Leaves the calendar as it was.
    fn plan_group(
        &mut self,
        requests: &[ReservationRequest],
        order: &[usize],
    ) -> Result<GroupPlan, ReservationError> {
        let mut plan = GroupPlan::new();
        let mut refused = Ok(());
        for at in order {
            match self.first_start(&requests[*at]) {
                Ok(start) => plan.push((*at, start)),
                Err(error) => {
                    refused = Err(error);
                    break;
                }
            }
            let request = &requests[*at];
            let (_, start) = plan[plan.len() - 1];
            self.resources.book(&request.demand, Span::new(start, request.length()));
        }
        for (at, start) in &plan {
            let request = &requests[*at];
            self.resources.release(&request.demand, Span::new(*start, request.length()));
        }
        refused.map(|()| plan)
    }

    /// Charges all requests to their ceilings, or none.
    fn charge_group(
        &mut self,
        requests: &[ReservationRequest],
        reserved: &[Amount],
    ) -> Result<(), ReservationError> {
        for (at, request) in requests.iter().enumerate() {
            if let Err(error) = self.ceilings.check(&request.owner, reserved[at], 1) {
                for (request, reserved) in requests[..at].iter().zip(reserved) {
                    self.ceilings.release(&request.owner, *reserved);
                }
                return Err(error);
            }
            self.ceilings.charge(&request.owner, reserved[at], 1);
        }
        Ok(())
    }
}

/// The plan that ends first; the first error if there is none.
fn best_plan(
    requests: &[ReservationRequest],
    plans: [Result<GroupPlan, ReservationError>; 2],
) -> Result<GroupPlan, ReservationError> {
    let end =
        |plan: &GroupPlan| plan.iter().map(|(at, start)| *start + requests[*at].length()).max();
    let [given, by_bytes] = plans;
    match (given, by_bytes) {
        (Ok(given), Ok(by_bytes)) if end(&by_bytes) < end(&given) => Ok(by_bytes),
        (Err(_), Ok(by_bytes)) => Ok(by_bytes),
        (given, _) => given,
    }
}

/// The most reservations of a group.
const GROUP_MAX: usize = 256;
