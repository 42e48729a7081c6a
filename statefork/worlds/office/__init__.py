"""The office: shop, tracker and wiki of one company in one world, their databases on one PostgreSQL."""
