"""Filling the shop's forms over HTTP, as its administrator."""

from __future__ import annotations

import re
from html import unescape

import httpx

from statefork.worlds.shop import catalogue


class Admin:
    """A person who fills forms: fields keep what the page offers unless told otherwise."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def get(self, path: str) -> httpx.Response:
        """A page, whatever its status."""
        return await self.client.get(path)

    async def fill(self, path: str, form: str, **values: str) -> httpx.Response:
        """Submit the form whose opening tag has ``form`` in it."""
        page = (await self.get(path)).text
        forms = [match for match in re.findall(r"<form.*?</form>", page, re.DOTALL) if form in match]
        assert forms, (path, form, re.findall(r"<title>[^<]*|<form[^>]*>", page))
        found = forms[0]
        data: dict[str, str | list[str]] = {}
        for tag in re.findall(r"<input[^>]*>", found):
            name, kind = _attribute(tag, "name"), _attribute(tag, "type")
            if name and (kind not in ("checkbox", "radio", "submit", "file") or "checked" in tag):
                data[name] = _attribute(tag, "value") or ("on" if kind == "checkbox" else "")
        for name, body in re.findall(r'<textarea[^>]*name="([^"]+)"[^>]*>(.*?)</textarea>', found, re.DOTALL):
            data[name] = unescape(body).strip()
        for tag, body in re.findall(r"(<select[^>]*>)(.*?)</select>", found, re.DOTALL):
            chosen = [
                _attribute(option, "value") for option in re.findall(r"<option[^>]*>", body) if "selected" in option
            ]
            if chosen or "multiple" not in tag:
                data[_attribute(tag, "name")] = chosen if "multiple" in tag else (chosen or [""])[0]
        return await self.client.post(path, data={**data, **values}, headers={"Referer": str(self.client.base_url)})

    async def log_in(self) -> None:
        """As the seeded administrator."""
        page = await self.fill(
            "/admin/login/?next=/admin/", "username", username="admin", password=catalogue.ADMIN_PASSWORD
        )
        assert page.status_code == 200
        assert "Log out" in page.text


def _attribute(tag: str, name: str) -> str:
    found = re.search(rf'\b{name}="([^"]*)"', tag)
    return unescape(found[1]) if found else ""
