"""Puts the Lakefork page into Airflow's navigation."""

from airflow.plugins_manager import AirflowPlugin

from lakefork_page.app import app


class LakeforkPlugin(AirflowPlugin):  # type: ignore[misc]  # Airflow is not typed for us
    name = "lakefork"
    fastapi_apps = [{"app": app, "url_prefix": "/lakefork", "name": "Lakefork"}]  # noqa: RUF012 - as Airflow reads it
    external_views = [  # noqa: RUF012
        {"name": "Lakefork", "href": "/lakefork/", "destination": "nav", "url_route": "lakefork", "category": "browse"}
    ]
