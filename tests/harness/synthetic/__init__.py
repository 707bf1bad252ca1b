"""Sites of which parts are replaced: no workers, no model, no daemon behind the API."""
