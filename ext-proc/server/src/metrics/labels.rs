//! Label values with a bounded number: models and pools from the configuration, tenants up to a cap.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU16, Ordering};

use dashmap::DashMap;

use crate::config::Config;

/// Most tenants with labels of their own; later ones share [`OTHER`].
pub const TENANT_LABELS_MAX: u16 = 1000;

/// Longest tenant with a label of its own, bytes.
pub const TENANT_LABEL_BYTES_MAX: usize = 128;

/// Label value of everything past a bound.
pub const OTHER: &str = "other";

/// Label value where there is nothing to name: no pool was chosen, no model was read.
pub const NONE: &str = "none";

/// A closed set of names: ids of [`NONE`] and [`OTHER`] are 0 and 1.
pub(super) struct Names {
    ids: BTreeMap<String, u16>,
    names: Vec<String>,
}

impl Names {
    fn new(names: impl Iterator<Item = String>) -> Self {
        let names: Vec<String> = [NONE.to_owned(), OTHER.to_owned()].into_iter().chain(names).collect();
        let ids = (0..).zip(&names).map(|(id, name)| (name.clone(), id)).collect();
        Self { ids, names }
    }

    pub(super) fn models(config: &Config) -> Self {
        Self::new(config.pools.iter().flat_map(|pool| pool.models.iter().cloned()))
    }

    pub(super) fn pools(config: &Config) -> Self {
        Self::new(config.pools.iter().map(|pool| pool.name.clone()))
    }

    /// Id of `name`; an empty one is [`NONE`], an unknown one [`OTHER`].
    pub(super) fn id(&self, name: &str) -> u16 {
        if name.is_empty() { 0 } else { self.ids.get(name).copied().unwrap_or(1) }
    }

    pub(super) fn name(&self, id: u16) -> &str {
        self.names.get(usize::from(id)).map_or(OTHER, String::as_str)
    }
}

/// Tenants seen so far. The first [`TENANT_LABELS_MAX`] have ids of their own from 1 on; 0 is [`OTHER`].
#[derive(Default)]
pub(super) struct Tenants {
    ids: DashMap<String, u16>,
    count: AtomicU16,
}

impl Tenants {
    pub(super) fn id(&self, tenant: &str) -> u16 {
        if let Some(id) = self.ids.get(tenant) {
            return *id;
        }
        if tenant == OTHER || tenant.len() > TENANT_LABEL_BYTES_MAX {
            return 0;
        }
        let next = || {
            let below_cap = |count| if count < TENANT_LABELS_MAX { Some(count + 1) } else { None };
            self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, below_cap).map(|count| count + 1)
        };
        match self.ids.entry(tenant.to_owned()).or_try_insert_with(next) {
            Ok(id) => *id,
            Err(_full) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_past_the_cap_share_one_label() {
        let tenants = Tenants::default();
        for n in 0..TENANT_LABELS_MAX {
            assert_eq!(tenants.id(&format!("t{n}")), n + 1);
        }
        assert_eq!(tenants.id("late"), 0);
        assert_eq!(tenants.id("t7"), 8);
        assert_eq!(tenants.ids.len(), usize::from(TENANT_LABELS_MAX));
        assert_eq!(Tenants::default().id(&"x".repeat(TENANT_LABEL_BYTES_MAX + 1)), 0);
    }

    #[test]
    fn unknown_names_are_other_and_empty_ones_none() {
        let names = Names::new(["a".to_owned()].into_iter());
        assert_eq!(["", "a", "b"].map(|name| names.name(names.id(name))), [NONE, "a", OTHER]);
    }
}
