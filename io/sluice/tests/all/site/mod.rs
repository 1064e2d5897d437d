//! A controller with tokens, and proxies of one target, for the tests of reservations.
//!
//! ```text
//!   users' clients, an administrator ─► controller ◄─ token of role proxy ─ proxies a, b
//! ```

#![allow(dead_code, reason = "each test file uses a part of it")]

use api::{NewToken, Role};
use http::ApiClient;
use testkit::TestFolder;

use crate::common::{Controller, Proxy, Setup, until};
use crate::entrusted::{client, first_token, secret, showing, text, token};

/// A controller, and a proxy of target `fs` for each of some names.
pub(crate) struct Site<const N: usize> {
    pub(crate) controller: Controller,
    pub(crate) admin: ApiClient,
    pub(crate) proxies: [Proxy; N],
    /// Of role proxy.
    pub(crate) proxy_token: String,
    pub(crate) data: TestFolder,
}

impl<const N: usize> Site<N> {
    /// Starts all, and waits until the target is described. `lines` are more of the target's table,
    /// which has 1 GB/s of reads and of writes.
    pub(crate) fn start(test: &str, names: [&str; N], lines: &str) -> Site<N> {
        let data = TestFolder::new();
        let root = first_token(data.path());
        let controller = Controller::start(data.path(), "http://127.0.0.1:0");
        let admin = client(&controller.url, &showing(&root));
        let proxy_token = token(&admin, "proxies", Role::Proxy);
        let file = secret(data.path().join("proxy.token"), &proxy_token);
        let tables = format!(
            "[[export]]\nname = \"x\"\ndir = \"data\"\ntarget = \"fs\"\n\
             [[target]]\nname = \"fs\"\ncapacity_read = \"1GB/s\"\n\
             capacity_write = \"1GB/s\"\ncapacity_metadata = \"1000000ops/s\"\n{lines}"
        );
        let proxies = names.map(|name| {
            let top = format!(
                "controller = \"{}\"\nproxy_name = \"{name}\"\ncontroller_token_file = \"{}\"\n",
                controller.url,
                text(&file)
            );
            Setup::new(&format!("{test}-{name}")).top(&top).tables(&tables).api().start()
        });
        until("the target is described", || {
            let resources = admin.calendar("").unwrap().resources;
            resources.iter().filter(|of| of.name == "fs" && of.read_per_sec > 0).count() == 2
        });
        Site { controller, admin, proxies, proxy_token, data }
    }

    /// A new token of role user.
    pub(crate) fn token_of(&self, uid: u32) -> String {
        let name = format!("user-{uid}");
        let new = NewToken { name, role: Role::User, user: Some(uid), expires_s: None };
        self.admin.make_token(&new).unwrap().token
    }

    pub(crate) fn client_of(&self, token: &str) -> ApiClient {
        client(&self.controller.url, &showing(token))
    }

    /// A client with a new token of role user, and a file with it.
    pub(crate) fn user(&self, uid: u32) -> (ApiClient, String) {
        let token = self.token_of(uid);
        let file = secret(self.data.path().join(format!("{uid}.token")), &token);
        (self.client_of(&token), text(&file).to_owned())
    }
}
