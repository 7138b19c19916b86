"""The console: who sees what, who may order what, and that nothing on it can be injected."""

from __future__ import annotations

import re
from contextlib import contextmanager

import httpx
import pytest
from test_api import SETTINGS, served

from evalstop.service.api import create_app
from evalstop.service.assemble import start
from evalstop.service.dashboard import add_dashboard
from evalstop.service.dashboard.pictures import Dot, cumulative, curve, sparkline
from evalstop.service.tokens import Principal, Scope

PAGES = ["/ui/", "/ui/jobs", "/ui/savings", "/ui/policies", "/ui/audit"]
ALL = ["/ui/savings", "/ui/policies", "/ui/audit"]


class Browser:
    """A person's browser, without a script."""

    def __init__(self, http, token):
        self.http = http
        self.login = self.http.post("/ui/login", data={"token": token})

    def get(self, path, **headers):
        return self.http.get(path, headers=headers, follow_redirects=True)

    def form_key(self):
        return re.search(r'name="form_key" value="([^"]+)"', self.get("/ui/jobs").text)[1]

    def order(self, path, **fields):
        return self.http.post(path, data={"form_key": self.form_key()} | fields)


@contextmanager
def console_in(folder):
    running = start(SETTINGS, folder, url="http://127.0.0.1:1")
    app = create_app(running.platform, running.tokens)
    add_dashboard(app, running.platform, running.tokens, app.state.gate)
    with served(app) as url:
        console = Console(running, url)
        yield console
        for client in console.clients:
            client.close()
    for job in running.platform.jobs():
        if job["outcome"] is None:
            running.platform.command("stop", actor="test", job=job["id"])
            running.platform.wait_for(job["id"], {"ended"}, within_s=120)
    running.close()


class Console:
    def __init__(self, running, url):
        self.running, self.url = running, url
        self.clients = []
        self.api = self.client(f"{url}/api/v1")
        token = running.tokens.make(Principal(name="ada", scope=Scope.ADMIN))
        self.api.headers = {"Authorization": f"Bearer {token}"}

    def client(self, url=None, **fields):
        self.clients.append(httpx.Client(base_url=url or self.url, timeout=120, **fields))
        return self.clients[-1]

    def submit(self, job, tenant="t", **fields):
        body = {"id": job, "tenant": tenant, "direction": "max", "command": ["sleep", "1000"]}
        answer = self.api.post("/jobs", json=body | {"job_type": "rlhf", "grace_s": 1} | fields)
        assert answer.status_code == 201, answer.text
        self.running.platform.wait_for(job, {"running"}, within_s=120)

    def report(self, job, *scores):
        evals = [{"step": step, "score": score} for step, score in enumerate(scores, start=1)]
        assert self.api.post(f"/jobs/{job}/evals", json={"evals": evals}).status_code == 200

    def be(self, **principal):
        return Browser(self.client(), self.running.tokens.make(Principal(**principal)))

    def operator(self):
        return self.be(name="olga", scope=Scope.OPERATOR)


@pytest.fixture
def console(tmp_path):
    with console_in(tmp_path) as one:
        yield one


def test_everybody_is_asked_to_log_in_first(console):
    http = console.client()
    for path in [*PAGES, "/ui/jobs/x"]:
        answer = http.get(path)
        assert answer.status_code == 303
        assert answer.headers["location"].startswith("/ui/login")
    assert http.get("/ui/stream").status_code == 401
    assert http.post("/ui/freeze", data={}).status_code == 401
    assert http.get("/").headers["location"] == "/ui/"


def test_a_wrong_token_and_a_jobs_own_token_open_nothing(console):
    console.submit("a")
    for token in ["", "wrong", console.running.tokens.of_job("a")]:
        browser = Browser(console.client(), token)
        assert browser.login.status_code == 401
        assert "no token we know" in browser.login.text
        assert not browser.http.cookies


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(console):
    cookie = console.operator().login.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_whole_and_fetches_nothing_from_elsewhere(console, path):
    console.submit("a")
    console.report("a", 0.5, 0.9, 0.95)
    answer = console.operator().get(path)
    assert answer.status_code == 200
    assert "<main" in answer.text
    assert not re.search(r'(src|href|action)="(https?:)?//', answer.text)
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert not re.search(r"<script>|\son[a-z]+=|\sstyle=", answer.text)


def test_a_job_shows_what_its_side_signals_did(console):
    console.submit("a")
    for step, score in enumerate([0.5, 0.6, 0.55], start=1):
        evals = [{"step": step, "score": score, "signals": {"kl": step**2, "<b>": step}}]
        assert console.api.post("/jobs/a/evals", json={"evals": evals}).status_code == 200
    text = console.operator().get("/ui/jobs/a").text
    assert "<li>KL from the start rose from 2.5 to 9 since the best score at step 2" in text
    assert "<li>&lt;b&gt; rose" in text


def test_the_live_part_comes_alone_for_the_script(console):
    answer = console.operator().get("/ui/jobs", **{"x-fragment": "live"})
    assert "<h1>Jobs</h1>" in answer.text
    assert "<html" not in answer.text


def test_a_tenant_sees_its_own_jobs_and_nothing_of_the_cluster(console):
    console.submit("mine", tenant="red")
    console.submit("theirs", tenant="blue")
    red = console.be(name="rita", scope=Scope.TENANT, tenant="red")
    for path in ["/ui/", "/ui/jobs", "/ui/jobs?tenant=blue"]:
        text = red.get(path).text
        assert "mine" in text
        assert "theirs" not in text
        assert "blue" not in text.replace("tenant=blue", "")
    assert "GPUs by state" not in red.get("/ui/").text
    assert red.get("/ui/jobs/mine").status_code == 200
    assert red.get("/ui/jobs/theirs").status_code == 404
    assert red.get("/ui/jobs/theirs/record").status_code == 404
    assert [red.get(path).status_code for path in ALL] == [403, 403, 403]


def test_a_tenant_may_order_nothing(console):
    console.submit("mine", tenant="red")
    red = console.be(name="rita", scope=Scope.TENANT, tenant="red")
    assert "Stop now" not in red.get("/ui/jobs/mine").text
    for path in ["/ui/jobs/mine/stop", "/ui/jobs/mine/snooze", "/ui/freeze"]:
        assert red.order(path).status_code == 403
    assert console.running.platform.job("mine")["phase"] == "running"


def test_an_operator_stops_a_job_and_reopens_it(console):
    console.submit("a")
    console.report("a", 0.5, 0.9, 0.95)
    olga = console.operator()
    assert "Stop now" in olga.get("/ui/jobs/a").text
    assert olga.order("/ui/jobs/a/stop").status_code == 303
    console.running.platform.wait_for("a", {"cancelled"}, within_s=120)
    page = olga.get("/ui/jobs/a").text
    assert "By olga" in page
    assert "Undo" in page
    assert "Stop now" not in page
    assert olga.get("/ui/jobs/a/record").json()["decisions"][0]["author"] == "olga"
    olga.order("/ui/jobs/a/undo")
    console.running.platform.wait_for("a", {"running"}, within_s=120)
    assert "undo" in olga.get("/ui/audit").text


def test_what_cannot_be_done_is_said_on_the_page(console):
    console.submit("a")
    answer = console.operator().order("/ui/jobs/a/undo")
    assert "only%20a%20job%20that%20was%20stopped" in answer.headers["location"]


def test_a_form_from_elsewhere_is_refused(console):
    console.submit("a")
    olga = console.operator()
    for key in ["", "guess", "é"]:
        answer = olga.http.post("/ui/jobs/a/stop", data={"form_key": key})
        assert answer.status_code == 403
    assert console.running.platform.job("a")["phase"] == "running"


def test_unknown_orders_and_oversized_forms_change_nothing(console):
    console.submit("a")
    olga = console.operator()
    assert olga.order("/ui/jobs/a/explode").status_code == 404
    assert olga.order("/ui/explode").status_code == 404
    assert olga.order("/ui/jobs/a/stop", note="x" * 100_000).status_code == 403
    assert console.running.platform.job("a")["phase"] == "running"


def test_a_token_that_is_revoked_ends_the_sessions_it_opened(console):
    made = console.api.post("/tokens", json={"name": "olga", "scope": "operator"}).json()
    olga, other = Browser(console.client(), made["token"]), console.operator()
    key = olga.form_key()
    assert olga.get("/ui/jobs").status_code == 200
    console.api.delete(f"/tokens/{made['id']}").raise_for_status()
    assert olga.http.get("/ui/jobs").status_code == 303
    assert olga.http.post("/ui/freeze", data={"form_key": key}).status_code == 401
    assert olga.http.get("/ui/stream").status_code == 401
    assert other.http.get("/ui/jobs").status_code == 200


def test_logging_out_ends_the_session_for_good(console):
    olga = console.operator()
    cookies = dict(olga.http.cookies)
    olga.order("/ui/logout")
    http = console.client(cookies=cookies)
    assert http.get("/ui/jobs").status_code == 303


@pytest.mark.parametrize("target", ["//evil.example/", "https://evil.example/", "/api/v1/jobs"])
def test_logging_in_leads_to_our_own_pages_only(console, target):
    token = console.running.tokens.make(Principal(name="o", scope=Scope.OPERATOR))
    http = console.client()
    answer = http.post("/ui/login", params={"next": target}, data={"token": token})
    assert answer.headers["location"] == "/ui/"


def test_names_that_look_like_markup_are_shown_as_text(console):
    console.submit("a", tenant="<script>alert(1)</script>", labels={"metric": '"><img src=x>'})
    console.report("a", 0.5, 0.9)
    olga = console.operator()
    for path in ["/ui/", "/ui/jobs", "/ui/jobs/a", "/ui/savings", "/ui/jobs?message=<b>hi</b>"]:
        text = olga.get(path).text
        assert "<script>alert" not in text
        assert "<img src=x" not in text
        assert "<b>hi" not in text


def test_the_stream_says_only_that_something_changed(console):
    console.submit("a")
    olga = console.operator()
    with olga.http.stream("GET", "/ui/stream") as answer:
        lines = answer.iter_lines()
        assert next(lines) == "retry: 2000"
        console.report("a", 0.5)
        assert [next(lines) for _ in range(3)] == ["", "event: changed", "data: 1"]


def test_pictures_stay_small_and_finite_whatever_the_curve():
    dots = [Dot(step, float(step % 7), 0.1, float(step)) for step in range(100_000)]
    picture = curve(dots, metric="m", best_step=6, stop_step=99_999)
    assert len(picture) < 200_000
    assert "nan" not in picture
    assert 'class="proxy"' in picture
    flat = sparkline([Dot(1, 0.5)], best_step=1, stop_step=None)
    assert 'class="best"' in flat
    assert "no evals yet" in sparkline([Dot(1, float("nan"))], best_step=None, stop_step=None)
    assert "No evaluation" in curve([], metric="m", best_step=None, stop_step=None)


def test_savings_add_up_over_time():
    assert "Nothing has been stopped" in cumulative([], now=0.0)
    assert "5 in all" in cumulative([(2.0, 3.0), (1.0, 2.0)], now=4.0)
