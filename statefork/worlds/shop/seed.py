"""The shop's rows: categories, products with stock and pictures, customers, reviews, delivery methods and a voucher.

Runs inside Django (``build.py`` sets it up, with a clock that stands still); the same rows in every build.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.hashers import make_password
from django.contrib.sites.models import Site
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from django.db import transaction
from oscar.apps.catalogue.categories import create_from_breadcrumbs
from oscar.core.loading import get_model
from oscar.core.utils import slugify

from statefork.worlds.shop import catalogue, pictures
from statefork.worlds.shop.catalogue import OPENED

Progress = Callable[[float, str], None]


def seed(progress: Progress) -> None:
    """Fill the migrated, empty database and the media storage. ``progress`` gets fractions of the seed's own work."""
    with transaction.atomic():
        Site.objects.filter(pk=1).update(domain="shop.example", name="Harbour & Pine")
        countries = _countries()
        _deliveries(countries)
        customers = _customers(countries)
        progress(0.1, f"{len(customers)} customers")
        products = _products(lambda done: progress(0.1 + 0.6 * done, "products and pictures"))
        progress(0.75, f"{catalogue.REVIEWS} reviews")
        _reviews(products, customers)
        _voucher()
    progress(1.0, f"{len(products)} products, {len(customers)} customers, {catalogue.REVIEWS} reviews")


def _countries() -> dict[str, Any]:
    model = get_model("address", "Country")
    made = {}
    for order, (code, name) in enumerate(catalogue.COUNTRIES.items()):
        made[code] = model.objects.create(
            iso_3166_1_a2=code,
            printable_name=name,
            name=name,
            display_order=len(catalogue.COUNTRIES) - order,
            is_shipping_country=True,
        )
    return made


def _deliveries(countries: dict[str, Any]) -> None:
    model = get_model("shipping", "OrderAndItemCharges")
    rows = (
        ("Post", "Four to six days, by the slow and steady.", "3.50", "0.20", "60.00", list(countries)),
        ("Courier", "The day after tomorrow, to your door.", "8.90", "0.50", None, ["GB", "IE", "NO", "DE"]),
        ("Bicycle", "This afternoon, if you live near the harbour.", "12.00", "0.00", None, ["GB"]),
    )
    for name, about, order, item, free_from, where in rows:
        method = model.objects.create(
            code=name.lower(),
            name=name,
            description=about,
            price_per_order=Decimal(order),
            price_per_item=Decimal(item),
            free_shipping_threshold=Decimal(free_from) if free_from else None,
        )
        method.countries.set([countries[code] for code in where])


def _user(username: str, email: str, password: str, first: str, last: str, **more: object) -> Any:
    model = get_user_model()
    # A salt that is drawn would make two builds differ.
    secret = make_password(password, salt=f"salt{username}")
    return model(username=username, email=email, password=secret, first_name=first, last_name=last, **more)


def _customers(countries: dict[str, Any]) -> list[Any]:
    admin = _user(
        "admin", catalogue.ADMIN_EMAIL, catalogue.ADMIN_PASSWORD, "Mona", "Reeve", is_staff=True, is_superuser=True
    )
    admin.save()
    address = get_model("address", "UserAddress")
    made = []
    for number, name in enumerate(catalogue.CUSTOMERS):
        first, last = name.split(" ", 1)
        user = _user(first.lower(), catalogue.email(name), catalogue.PASSWORD, first, last)
        user.save()
        made.append(user)
        if number % 2 == 0:  # every second customer has an address to choose at the checkout
            town, postcode = catalogue.TOWNS[number % len(catalogue.TOWNS)]
            address.objects.create(
                user=user,
                first_name=first,
                last_name=last,
                line1=f"{number + 3} {catalogue.STREETS[number % len(catalogue.STREETS)]}",
                line4=town,
                postcode=postcode,
                country=countries["GB"],
                is_default_for_shipping=True,
            )
    return made


def _products(done: Callable[[float], None]) -> list[Any]:
    product_class = get_model("catalogue", "ProductClass").objects.create(
        name="Goods", slug="goods", requires_shipping=True, track_stock=True
    )
    partner = get_model("partner", "Partner").objects.create(name="Harbour & Pine", code="harbour-pine")
    articles = list(catalogue.articles())
    categories = {kind.category: create_from_breadcrumbs(kind.category) for kind in catalogue.KINDS}
    product, stock = get_model("catalogue", "Product"), get_model("partner", "StockRecord")
    image, link = get_model("catalogue", "ProductImage"), get_model("catalogue", "ProductCategory")
    products = product.objects.bulk_create(
        product(
            title=article.title,
            slug=slugify(article.title),
            upc=article.upc,
            description=f"<p>{article.description}</p>",
            product_class=product_class,
            is_public=True,
        )
        for article in articles
    )
    for rank, made in enumerate(products):
        made.date_created = made.date_updated = OPENED - timedelta(minutes=rank)
    product.objects.bulk_update(products, ["date_created", "date_updated"], batch_size=100)
    pairs = list(zip(articles, products, strict=True))
    link.objects.bulk_create(link(product=made, category=categories[article.kind.category]) for article, made in pairs)
    stock.objects.bulk_create(
        stock(
            product=made,
            partner=partner,
            partner_sku=article.upc,
            price_currency="GBP",
            price=article.price,
            num_in_stock=article.stock,
        )
        for article, made in pairs
    )
    for number, (article, _) in enumerate(pairs):
        picture = pictures.png(article.kind.name, catalogue.COLOURS[article.colour], article.line)
        default_storage.save(article.image, ContentFile(picture))
        if number % 40 == 0:
            done(number / len(pairs))
    image.objects.bulk_create(image(product=made, original=article.image, display_order=0) for article, made in pairs)
    return list(products)


def _reviews(products: Sequence[Any], customers: Sequence[Any]) -> None:
    random = Random(catalogue.SEED + 1)
    model = get_model("reviews", "ProductReview")
    writers = customers[1::2]  # the others have an address instead, and have reviewed nothing yet
    pairs = random.sample([(product, user) for product in products for user in writers], catalogue.REVIEWS)
    rows = []
    for product, user in pairs:
        score = random.choice((5, 5, 5, 4, 4, 4, 3, 2))
        title, body = random.choice(catalogue.PRAISE if score > 3 else catalogue.DOUBTS)
        rows.append(model(product=product, user=user, score=score, title=title, body=body, status=model.APPROVED))
    for number, row in enumerate(model.objects.bulk_create(rows)):  # which stamps them with the present
        row.date_created = OPENED - timedelta(hours=7 * number)
    model.objects.bulk_update(rows, ["date_created"], batch_size=100)
    for product in {product.pk: product for product, _ in pairs}.values():
        product.rating = product.calculate_rating()
    get_model("catalogue", "Product").objects.bulk_update(products, ["rating"], batch_size=100)


def _voucher() -> None:
    offer = {name: get_model("offer", name) for name in ("Range", "Condition", "Benefit", "ConditionalOffer")}
    everything = offer["Range"].objects.create(name="Everything", slug="everything", includes_all_products=True)
    condition = offer["Condition"].objects.create(range=everything, type="Count", value=1)
    benefit = offer["Benefit"].objects.create(range=everything, type="Percentage", value=10)
    welcome = offer["ConditionalOffer"].objects.create(
        name="Ten per cent off your first order",
        slug="welcome",
        offer_type="Voucher",
        condition=condition,
        benefit=benefit,
    )
    voucher = get_model("voucher", "Voucher").objects.create(
        name="Welcome to the harbour",
        code=catalogue.VOUCHER,
        usage="Multi-use",
        start_datetime=OPENED - timedelta(days=1),
        end_datetime=datetime(2099, 12, 31, tzinfo=UTC),
    )
    voucher.offers.add(welcome)
